"""Source that a corpus keeps."""


def module_text(seed: str, count: int = 12) -> str:
    """Python of which no two seeds share a shingle."""
    functions = [
        f"def {seed}_{i}(left_{seed}, right_{i}):\n"
        f"    total_{seed} = left_{seed} + {seed}_offset_{i} * right_{i}\n"
        f"    return check_{seed}(total_{seed}, name_{i}_{seed})\n"
        for i in range(count)
    ]
    return f'"""Module {seed}."""\n\n' + "\n\n".join(functions)
