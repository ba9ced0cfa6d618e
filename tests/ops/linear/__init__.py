"""Linear layers: addmm, mm, _addmm_activation, and the graph pass for Inductor."""
