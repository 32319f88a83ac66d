"""The only place that replaces names in other packages, so that a program meets emulated devices."""
