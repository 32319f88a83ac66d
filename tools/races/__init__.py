"""Random programs of several streams beside an oracle."""
