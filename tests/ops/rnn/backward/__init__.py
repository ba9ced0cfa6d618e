"""Tests of the backward of recurrent layers."""
