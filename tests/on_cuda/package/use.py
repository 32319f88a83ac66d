import fused  # noqa: F401  which registers its operators
import torch


def plain(x):
    return x.float() * torch.rsqrt(x.float().square().mean(-1, keepdim=True) + 1e-6) + 0.25


for dtype, tol in ((torch.float32, 1e-4), (torch.float16, 4e-3), (torch.bfloat16, 4e-2)):
    x = torch.randn(64, 100, device="cuda", dtype=dtype, requires_grad=True)
    y = torch.ops.fused.norm(x)
    torch.testing.assert_close(y.float(), plain(x), rtol=tol, atol=tol)
    g = torch.randn_like(y)
    (got,) = torch.autograd.grad(y, x, g)
    (want,) = torch.autograd.grad(plain(x), x, g.float())
    torch.testing.assert_close(got, want.to(dtype), rtol=tol * 4, atol=tol * 4)
side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    z = torch.ops.fused.norm(torch.ones(8, 32, device="cuda"))
torch.cuda.current_stream().wait_stream(side)
z.record_stream(torch.cuda.current_stream())
torch.testing.assert_close(z, torch.full_like(z, 1.25), rtol=1e-4, atol=1e-4)
print("done")
