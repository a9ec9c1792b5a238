"""What a reviewer of security or quality would stop at."""

from concepts.cases import Case

CASES = {
    "bare_except": Case(
        yes=("try:\n    f()\n«except:\n    pass»\n",),
        no=("try:\n    f()\nexcept OSError:\n    pass\n",),
        tricky=(
            "x = 'except:'  # except:\n",
            "try:\n    f()\n«except:\n    try:\n        g()\n    «except:\n        pass»»\n",
        ),
    ),
}
