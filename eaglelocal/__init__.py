"""eaglelocal: speculative decoding at home, made dependable."""

__version__ = "0.1.0"
