"""``python -m aten_ext profile SCRIPT``: a program under torch.profiler, with the overrides off and then on.

``command`` starts two processes, one after the other; in each ``_worker`` runs the script, ``window`` decides
what of it is recorded, and ``summary`` boils the record down. ``report`` puts both side by side.
"""
