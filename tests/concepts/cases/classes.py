"""Classes: what they inherit from, what stands in them, and what their methods do with `self`."""

from concepts.cases import Case

CASES = {
    "class_def": Case(
        yes=("«class A:»\n    pass\n", "@d\n«class A(B, metaclass=M):»\n    x = {1: 2}\n"),
        no=("x = type('A', (), {})\n", "def class_():\n    pass\n"),
        tricky=(
            "s = '''class A:\n    pass\n'''  # class B: pass\n",
            (
                "«class Ünï(\n    B,  # the base: B\n    **{'k': 1},\n):»  # a comment: here\n\n"
                "    @d(x=lambda: 1)\n    def f(self): pass\n"
            ),
            "«class A:» x: int = 1\n",
            "if a:\n\t«class A \\\n\t\t(B):»\n\t\t«class C:»\n\t\t\t'''class D:'''\n",
        ),
    ),
    "inheritance": Case(
        yes=("«class A(B):»\n    pass\n", "«class A(object, B):»\n    pass\n"),
        no=("class A:\n    pass\n", "class A():\n    pass\n", "class A(object):\n    pass\n"),
        tricky=(
            "class A(metaclass=M):\n    pass\n",
            "«class A(*bases):»\n    pass\n",
            "class A(**kw): x = 'class B(C):'\n",
            "«class A(f(object)):»\n    class B(\n        object,  # not (C)\n    ):\n        pass\n",
            "«class A(Generic[T]):» ...\n",
        ),
    ),
    "multiple_inheritance": Case(
        yes=("«class A(B, C):»\n    pass\n", "«class A(b.B, C[int], object):»\n    pass\n"),
        no=("class A(B):\n    pass\n", "class A:\n    pass\n"),
        tricky=(
            "class A(B, metaclass=M):\n    pass\n",
            "class A(B, object):\n    pass\n",
            "class A(Dict[K, V]):  # (B, C)\n    pass\n",
            "class A(f(B, C)):\n    «class B(*x, *y,):» s = 'class A(B, C):'\n",
        ),
    ),
    "metaclass": Case(
        yes=("«class A(metaclass=M):»\n    pass\n", "«class A(B, x=1, metaclass=f(y)):»\n    pass\n"),
        no=("class A(B):\n    pass\n", "class A(B, meta=M):\n    pass\n"),
        tricky=(
            "class A(**{'metaclass': M}):\n    metaclass = M\n",
            "class A:\n    __metaclass__ = M  # metaclass=M\n",
            "f(metaclass=M)\n",
            "class A(with_metaclass(M, metaclass=N)):\n    pass\n",
            "«class A(\n    metaclass = (M)\n):» pass\n",
        ),
    ),
    "class_decorator": Case(
        yes=("@«d»\nclass A:\n    pass\n", "@«a.b»\n@«c(x=1)»\nclass A:\n    pass\n"),
        no=("@d\ndef f():\n    pass\n", "class A:\n    pass\n"),
        tricky=(
            "class A:\n    @d\n    def f(self): ...\n    @ «d»  # @e\n    # @g\n    class B: ...\n",
            "@((«x := d»))\nclass A: pass\n",
            "@d\nasync def f():\n    @«e[\n        0\n    ]»\n    class Ä: ...\n",
            "s = '''\n@d\nclass A: pass\n'''\n",
        ),
    ),
    "class_attribute": Case(
        yes=(
            "class A:\n    «x = 1»\n    «y: int»\n    «z: int = 2»\n",
            "class A:\n    '''d'''\n    «a = b = c, d = f(\n        1)»\n",
        ),
        no=("x = 1\n", "class A:\n    def f(self):\n        x = 1\n"),
        tricky=(
            "class A: «x = 1»; «y = 2»  # z = 3\n",
            "class A:\n    x += 1\n    (y := 2)\n    if z:\n        w = 1\n",
            "def f():\n    class A:\n        «ünï = lambda x=1: x»\n        def g(self, x=1): self.x = 1\n",
            (
                "class A:\n    '''x = 1'''\n    for i in y:\n        j = i\n    match i:\n"
                "        case 1:\n            k = 2\n"
            ),
            "class A:\n    class B:\n        «(x): int = 1»\n    «x[0] = \\\n        f'{y=}'»\n",
        ),
    ),
    "slots": Case(
        yes=(
            "class A:\n    «__slots__ = ('a', 'b')»\n    x = 1\n",
            "class A:\n    «__slots__: tuple[str, ...] = ()»\n",
        ),
        no=("class A:\n    slots = ()\n", "__slots__ = ()\n"),
        tricky=(
            "class A:\n    def f(self):\n        __slots__ = ()\n        self.__slots__ = ()\n",
            "class A:\n    '''__slots__ = ()'''  # __slots__ = ()\n    x = __slots__\n    A.__slots__ = ()\n",
            "@dataclass(slots=True)\nclass A: «x = __slots__ = [\n    'a',\n]»\n",
            "class A:\n    __slots__ += ('x',)\n    __slots__[0] = 'a'\n",
        ),
    ),
    "instance_attribute": Case(
        yes=("«self.x» = 1\n«self.y»: int = 2\n«self.z» += 3\n", "def f(self):\n    «self.a», «self.b» = 1, 2\n"),
        no=("x = self.x\n", "cls.x = 1\n", "del self.x\n"),
        tricky=(
            "self.x[0] = 1\nself.x.y = 2\nself = 3\nself.f().x = 4\n",
            "for «self.i» in x:\n    with y as («self.f»):\n        pass\n",
            "s = 'self.x = 1'  # self.x = 1\nself.x == 1\nf(self=1)\nf'{self.x=}'\n",
            "«self.x»: int\n[«self . \\\n  ünï», *«self.z»] = a\n",
            "a.self.x = 1\nself_.x = 2\nlambda self: self.x\n(x := self.y)\n",
        ),
    ),
    "nested_class": Case(
        yes=("class A:\n    «class B:»\n        pass\n", "def f():\n    «class B(C):»\n        x = 1\n"),
        no=("class A:\n    pass\n", "class A:\n    def f(self):\n        pass\nclass B:\n    pass\n"),
        tricky=(
            "if x:\n    class A:\n        s = '''\n    class B:\n'''\n",
            "async def f():\n    with x:\n        @d\n        «class Ü(Y,\n                Z):» x: int = 1\n",
            "try:\n    class A: pass\nexcept E:\n    class A: pass\nelse:\n    for i in x:\n        class A: pass\n",
            "class A:\n    if x:\n        «class B:»  # class C:\n            «class D:» ...\n",
        ),
    ),
    "self_attribute": Case(
        yes=("x = «self.x»\n", "«self.f»(«self.y»)\n«self.z» = «self.a».b\n"),
        no=("x = self\n", "cls.x\nthis.x\n"),
        tricky=(
            "s = 'self.x'  # self.x\nself_.x\na.self.x\nself().x\nself[0].x\n",
            "(«self \\\n  .ünï»).y[«(self).z»]\n",
            "def f(self, x=«self.y»):\n    '''self.x'''\n    return [«self.x» for self in y if (z := «self.w»)]\n",
            "del «self.x»\nawait_ = lambda self: «self.x»\n@«self.d»\nasync def g(): ...\n",
            "match x:\n    case «self.A»:\n        «self.b» += 1\n",
        ),
    ),
    "self_call": Case(
        yes=("«self.f(1)»\n", "x = «cls.g()».y\n"),
        no=("self.f\n", "self()\n", "obj.f(self)\n"),
        tricky=(
            "self.a.f()\nself.a[0]()\nsuper().f()\nself.f = 1\n",
            "«self.f(«cls.g(\n    ünï)»)»()\n",
            "s = 'self.f()'  # self.f()\nx.self.f()\nself_.f()\n",
            (
                "@«self.d(1)»\nasync def f():\n    await «self.g(*a,\n        **k)»\n"
                "    if y := «self . \\\n  h()»: pass\n"
            ),
            "@self.d\ndef f(self=cls): '''self.f()'''\n",
        ),
    ),
    "super_call": Case(
        yes=("«super()».__init__(x)\n", "«super(A, self)».f()\n"),
        no=("super\n", "Base.__init__(self)\n"),
        tricky=(
            "s = 'super().f()'  # super().f()\nself.super()\nsuper.f()\nf(super)\nsuperb()\n",
            "from x import super\nsuper()\n",
            "x = [«super(\n    Ä,  # a class\n    self)».y[0]]\n",
            "class A:\n    async def f(self):\n        return await «super()».f(lambda: «(super)()».g)\n",
        ),
    ),
    "fluent_return_self": Case(
        yes=("def f(self):\n    x = 1\n    «return self»\n", "def f(self):\n    if x:\n        «return (self)»\n"),
        no=("def f(self):\n    return self.x\n", "def f(self):\n    return\n"),
        tricky=(
            (
                "def f(self):\n    return self, self\n    return self()\n    return not self\n"
                "    return cls\n    return self or x\n"
            ),
            "def f(self): '''return self'''; «return self»  # return self\n",
            "async def f(self):\n\t«return \\\n\t\tself»; x = 1\n",
            "f = lambda self: self\ndef g(selfish):\n    yield self\n    s = 'return self'\n    return selfish\n",
        ),
    ),
}
