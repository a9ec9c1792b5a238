"""Methods with a meaning to the language."""

from concepts.cases import Case


def methods(*names: str, other: str) -> Case:
    """Cases of a group of methods by name; `other` is one that is not of them."""
    first, last = names[0], names[-1]
    each = "\n".join(f"    «def {name}(self):»\n        return 1" for name in names)
    return Case(
        yes=(
            f"class A:\n{each}\n",
            f"class A(B):\n    x = 1\n    @d\n    «async def {last}(self, x: int = 1) -> int:»\n        pass\n",
        ),
        no=(
            f"class A:\n    def {other}(self):\n        pass\n",
            f"class A:\n    def {first.strip('_')}_(self):\n        pass\n",
        ),
        tricky=(
            f"def {first}(self): ...\nif x:\n    def {last}(name): ...\n",
            (
                f"class A:\n    {first} = {last}\n    x = '''\n    def {first}(self): pass\n"
                f"'''  # def {first}(self):\n    y = lambda: self.{last}()\n"
            ),
            f"class A:\n    def f(self):\n        def {first}(self): pass\n",
            (
                f"def f():\n\tclass Ä:\n\t\tif x:\n\t\t\t«def {first}(\n"
                f"\t\t\t\tself,  # self: this\n\t\t\t\tünï={{1: 2}}):» pass\n\t\tclass B: pass\n"
            ),
            (
                f"class A:\n    «def \\\n        {last}(self, *, k=lambda: (y := 1)):» '''def {last}(self): ...'''; "
                "return f'{x:3}'\n"
            ),
            (
                f"class A:\n    def _{first}(self): ...\n    def {first}x(self): ...\n"
                f"    match x:\n        case 1:\n            «def {last}(self):» ...\n"
            ),
        ),
    )


CASES = {
    "dunder_init": methods("__init__", "__new__", "__post_init__", other="__init_subclass__"),
    "dunder_repr": methods("__repr__", "__str__", "__format__", other="__bytes__"),
    "dunder_compare": methods("__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__", "__hash__", other="__cmp__"),
    "dunder_arith": methods(
        "__add__",
        "__radd__",
        "__iadd__",
        "__rmatmul__",
        "__ixor__",
        "__or__",
        "__neg__",
        "__invert__",
        "__abs__",
        "__divmod__",
        "__rdivmod__",
        "__floordiv__",
        other="__idivmod__",
    ),
    "dunder_container": methods(
        "__getitem__",
        "__setitem__",
        "__delitem__",
        "__contains__",
        "__len__",
        "__missing__",
        "__reversed__",
        other="__iter__",
    ),
    "iterator_protocol": methods("__iter__", "__next__", "__aiter__", "__anext__", other="__await__"),
    "context_manager_protocol": methods("__enter__", "__exit__", "__aenter__", "__aexit__", other="__del__"),
    "callable_protocol": methods("__call__", other="__init__"),
    "attribute_protocol": methods(
        "__getattr__", "__getattribute__", "__setattr__", "__delattr__", "__dir__", other="__getitem__"
    ),
    "descriptor_protocol": methods("__get__", "__set__", "__delete__", "__set_name__", other="__getattr__"),
    "pickle_protocol": methods(
        "__reduce__", "__reduce_ex__", "__getstate__", "__setstate__", "__getnewargs__", other="__copy__"
    ),
    "class_hook": methods(
        "__init_subclass__", "__class_getitem__", "__instancecheck__", "__subclasscheck__", other="__getitem__"
    ),
    "destructor": methods("__del__", other="__delete__"),
}
