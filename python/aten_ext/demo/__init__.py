"""``python -m aten_ext demo``: a real model on real data, trained with the overrides off and on.

The task is grapheme-to-phoneme conversion on the CMU Pronouncing Dictionary. Two copies of one model start
from the same weights and see the same batches; one steps inside ``aten_ext.disabled()``, the other does not.
The model is plain PyTorch and knows nothing of aten_ext.
"""
