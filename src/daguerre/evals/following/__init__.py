"""Whether a chat model's answers do what they were told, as programs can check it: IFEval (Zhou et al., 2023,
arXiv:2311.07911), whose prompts are read from a file.
"""
