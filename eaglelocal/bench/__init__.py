"""Paired measurements of speculation against plain decoding."""
