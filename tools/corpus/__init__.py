"""Published measurements, what programs here say of them, and how far both are apart."""
