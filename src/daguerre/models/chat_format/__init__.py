"""How a model writes calls and thoughts, found from its chat template, and what reads and writes them.

`chat_format.ChatFormat` is the public class. Descriptions and readers need no Jinja.
"""
