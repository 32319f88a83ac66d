"""The names of the environment variables by which a run tells the processes of its program what to do.

What a person sets instead (`UNDERSTUDY_GPUS` and the like) is named by the options of the commands.
"""

OPTIONS = "UNDERSTUDY_RUN"
"""The options of the emulation, as JSON."""
FOLDER = "UNDERSTUDY_RUN_DIR"
"""Where each process leaves its records."""
PYTHON = "UNDERSTUDY_PYTHON"
"""The Python that understudy runs on."""
USED = "UNDERSTUDY_USED_DIR"
"""Where a process that has used a device leaves a file with its number: pytest counts the tests that start some."""
TRIAL = "UNDERSTUDY_TRIAL"
"""A change of the program that one rehearsal tries, by its name in `seam/torch/trials.py`."""
MEASURE = "UNDERSTUDY_MEASURE"
"""Set where real GPUs are measured and none is emulated."""
