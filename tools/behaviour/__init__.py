"""What programs do, recorded before a change of structure and compared after it."""
