"""PyTorch's own test databases (``torch.testing._internal``), run with the overrides on and off.

``table`` says which entries of the databases exercise which override, ``comparison`` holds two results
against each other, ``tally`` counts, ``operators``, ``modules`` and ``optimizers`` run one entry of one kind
of database, ``entries`` runs each once, ``report`` writes docs/torch_databases.md.
"""
