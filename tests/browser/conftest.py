"""Tests in a real browser: collected where there is one (`apt-get install chromium`)."""

from __future__ import annotations

from chromium import CHROMIUM

collect_ignore = [] if CHROMIUM else ["test_experiment_page.py", "test_html_page.py", "test_plan_page.py"]
