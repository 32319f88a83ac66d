"""The Trainer beside a handwritten loop."""
