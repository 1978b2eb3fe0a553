"""Decoding and transforming single images."""
