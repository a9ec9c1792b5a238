"""What published models are asked."""

from __future__ import annotations

import random
import string

CHATS = tuple(
    f"{question}?"
    for question in (
        "What is the capital of Norway",
        "Why is the sky blue",
        "What does HTTP 404 mean",
        "How many legs does a spider have",
        "Who wrote Hamlet",
        "What is 17 times 3",
        "What is a prime number",
        "How do I boil an egg",
        "What is the largest planet",
        "When did the Second World War end",
        "What is photosynthesis",
        "How does a bicycle stay upright",
        "What is the difference between a list and a tuple in Python",
        "Can you name three primary colors",
        "What language is spoken in Brazil",
        "What is the boiling point of water",
        "Who painted the Mona Lisa",
        "What is a haiku",
        "How do vaccines work",
        "What is the speed of light",
        "Why do leaves change color",
        "What is the Pythagorean theorem",
        "How far is the Moon",
        "What is recursion",
        "What is the smallest country",
        "How are rainbows made",
        "What is a noun",
        "Who discovered penicillin",
        "What is inflation",
        "How do I reverse a string in Python",
        "What is an atom",
        "What is the freezing point of water in Fahrenheit",
        "What is a leap year",
        "How many continents are there",
        "What is the main ingredient of bread",
        "What is gravity",
        "Where do penguins live",
        "What is the chemical symbol of gold",
        "What is a metaphor",
        "How do bees make honey",
        "What is the tallest mountain",
        "What is machine learning",
        "What is the opposite of hot",
        "Who was the first person on the Moon",
        "What is DNA",
        "How do I say hello in French",
        "What is an island",
        "What causes tides",
        "What is the square root of 144",
        "What is a compiler",
    )
)
CODES = tuple(
    f"def {signature}:\n"
    for signature in (
        "fibonacci(n)",
        "is_prime(number)",
        "reverse_words(text)",
        "mean(values)",
        "count_vowels(text)",
        "flatten(nested)",
        "gcd(a, b)",
        "read_lines(path)",
        "to_celsius(fahrenheit)",
        "most_common(words)",
        "binary_search(values, target)",
        "is_palindrome(text)",
        "merge_sorted(left, right)",
        "transpose(matrix)",
        "unique(values)",
        "clamp(value, low, high)",
        "word_lengths(text)",
        "chunks(values, size)",
        "parse_date(text)",
        "dot(a, b)",
    )
)
PIECES = (
    *("é", "ß", "漢字", "🙂", "👩\u200d👧", "\u200b", "\ufeff", "\x00", "\x07", "\x1b", "\u2028", "e\u0301", "ﷺ", "𝔘"),
    *("\n", "\r\n", "\t", "  ", "   \n", "\u00a0", "'s", "don't", "I'LL", "12345", "3.14", "1e-9", "0x1F", "__init__"),
    *("<|im_end|>", "<|", "|>", "</s>", "[INST]", "http://a.b/c?d=e", "a@b.c", "#include", "=>", "!==", "…", "--"),
)


def odd_strings(num: int) -> list[str]:
    """Texts that tokenizers differ in, the same whenever they are made."""
    rng = random.Random(0)
    letters = string.ascii_letters + string.punctuation + " "
    out = list[str]()
    for _ in range(num):
        words = ["".join(rng.choices(letters, k=rng.randrange(1, 9))) for _ in range(rng.randrange(1, 5))]
        mixed = [*words, *rng.choices(PIECES, k=rng.randrange(1, 6))]
        rng.shuffle(mixed)
        out.append("".join(mixed))
    return out
