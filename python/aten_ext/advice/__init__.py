"""What a program leaves on the table, for ``profile`` and ``doctor``.

``observe`` watches the program and keeps facts: shapes, options, lines, never its tensors. When the program
is over, ``judge`` makes advice of them, and ``trials`` times what is advised on tensors of the same shapes.
"""
