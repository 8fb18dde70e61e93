"""The generated corpus of the embedded model: seeded, endless, with a check in every task.

Makes and judges conversations of each kind; does not know tokenizers or models, and reads only its own data files.
"""
