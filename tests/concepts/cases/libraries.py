"""Libraries, by the names that imports bring into a file."""

from concepts.cases import Case

LIBRARIES = (
    "typing sys os numpy collections re unittest functools warnings json itertools datetime contextlib math".split()
)


def library(name: str) -> Case:
    return Case(
        yes=(
            f"import «{name}»\nx = «{name}».a.b\n",
            f"import sympy, «{name} as other»\n«other».f(«other»)\n",
            f"«from {name} import a, b as c»\na_ = «a» + «c»\n",
            f"import «{name}.x»\n«{name}».x.f()\n",
            f"«from {name}.x import *»\n",
        ),
        no=(
            f"{name} = 1\nf({name}.x)\n",
            f"from sympy import {name}\nimport {name}x\n{name}.f()\n",
            f"from .{name} import a\na()\n",
        ),
        tricky=(
            f"import «{name}»\n# import {name}\ns = '{name}.x'\nself.{name}.x\nf({name}=1)\ny = f'{{«{name}».x}}'\n",
            f"import «{name}»\ndef f({name}, x=«{name}»): return {name}.y\nasync def g(): await «{name}»\n",
            f"try:\n\timport «{name}»\nexcept ImportError:\n\t{name} = None\nif «{name}» is None: del x\n",
            f"def f():\n    «from {name} import (\n        a,  # x\n    )»; return (ü := «a»)\n",
            f"import «{name} as a», \\\n  «{name} as b»\n@«a».f\nclass A: b = «b».x; c = [a for a in «a»]\n",
            f"import «{name}»\nmatch x:\n    case «{name}».A(): lambda: «{name}»\n",
            f"import sympy.{name}\nimport sympy.{name} as {name}\n{name}.x\n",
            f"import «{name}»\ndel «{name}»\ndef f():\n    del {name}\n",
            f"def f():\n    import «{name}»\n    return lambda: «{name}»\n{name}.x\n",
        ),
    )


CASES = {f"lib_{name}": library(name) for name in LIBRARIES}
