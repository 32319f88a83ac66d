for tensor in (x, y, a, b, b2, c, z, d, e, f):
    print(repr(tensor.device))
print(c, z)
