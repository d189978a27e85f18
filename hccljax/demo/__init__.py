"""The demo: ``python -m hccljax.demo`` trains a network on handwritten digits, once with every algorithm."""
