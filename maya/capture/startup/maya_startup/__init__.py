"""Hooks inside the ranks of a capture: iterations, process groups, answers for absent ranks.

Depends on nothing but the standard library, and on PyTorch only once the program has imported it, as it
runs in the program's own interpreter.
"""
