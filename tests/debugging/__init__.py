"""scripts/trace_dispatch and the commands for gdb."""
