"""The generated corpus of the embedded model: seeded, endless, with a check carried by every task.

Knows how conversations of each kind of work are made and judged; knows no tokenizer, no model and no file but its data.
"""
