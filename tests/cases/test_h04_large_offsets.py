"""H04: offsets past 2^31 elements. Entries of a large batch get the bits that they get alone, strided views those of
contiguous tensors. Needs PyTorch and about 30 GiB of a GPU."""
import shutil
import subprocess
import sys
import unittest

import tilewright

try:
    import torch
except ImportError:
    torch = None

NEEDED_BYTES = 40 << 30


def gradients(q, k, v, d_o, **options):
    """[o, dq, dk, dv] of flash_attn_func, the gradients with the same bits in every run."""
    inputs = [x.detach().requires_grad_() for x in (q, k, v)]
    o = tilewright.flash_attn_func(*inputs, deterministic=True, **options)
    return [o.detach(), *torch.autograd.grad(o, inputs, d_o)]


def random(*shape):
    return torch.randn(shape, device="cuda", dtype=torch.bfloat16)


@unittest.skipIf(torch is None or not torch.cuda.is_available(), "PyTorch with CUDA missing")
class LargeOffsets(unittest.TestCase):
    def setUp(self):
        free, _ = torch.cuda.mem_get_info()
        if free < NEEDED_BYTES:
            self.skipTest(f"{free >> 30} GiB of the GPU are free, {NEEDED_BYTES >> 30} needed")
        torch.manual_seed(4)
        self.addCleanup(torch.cuda.empty_cache)

    def assert_entries_as_alone(self, *tensors, entries=None):
        """Batch entries 0, 1, middle, last: bitwise equal to running those alone."""
        batch = tensors[0].shape[0]
        together = gradients(*tensors)
        for entry in entries or (0, 1, batch // 2, batch - 1):
            alone = gradients(*(x[entry:entry + 1] for x in tensors))
            for name, a, b in zip(("o", "dq", "dk", "dv"), together, alone):
                self.assertTrue(torch.isfinite(b).all(), (entry, name))
                self.assertTrue(torch.equal(a[entry:entry + 1], b), (entry, name))

    def test_many_queries_over_few_keys(self):
        q, d_o = (random(400, 10496, 4, 128) for _ in range(2))
        k, v = (random(400, 128, 4, 128) for _ in range(2))
        self.assertGreater(q.numel(), 2**31)
        self.assert_entries_as_alone(q, k, v, d_o)

    def test_many_sequences(self):
        tensors = [random(1600, 16, 729, 72) for _ in range(4)]
        self.assert_entries_as_alone(*tensors)

    def test_many_sequences_of_the_other_layout(self):
        tensors = [random(1600, 16, 729, 72).transpose(1, 2) for _ in range(4)]
        self.assert_entries_as_alone(*tensors)

    def test_gradient_in_a_wider_tensor(self):
        tokens, heads, dim = 230_000, 16, 96
        wide = random(tokens, 9728)
        d_o = wide[:, :heads * dim].view(1, tokens, heads, dim)
        self.assertGreater(tokens * wide.stride(0), 2**31)
        q, k, v = (random(1, tokens, heads, dim) for _ in range(3))
        window = {"causal": True, "window_size": (1024, 0)}
        strided, contiguous = gradients(q, k, v, d_o, **window), gradients(q, k, v, d_o.contiguous(), **window)
        for name, a, b in zip(("o", "dq", "dk", "dv"), strided, contiguous):
            self.assertTrue(torch.isfinite(b).all(), name)
            self.assertTrue(torch.equal(a, b), name)

    def test_same_strides_and_few_entries(self):
        """What memcheck is run over: entries and rows as far apart as in the others, but few of them."""
        far = torch.zeros(400 * 10496 * 4 * 128, device="cuda", dtype=torch.bfloat16)
        q, d_o = (far.view(400, 10496, 4, 128)[::399, part:300 + part] for part in (0, 5000))
        q.normal_(), d_o.normal_()
        k, v = (random(2, 128, 4, 128) for _ in range(2))
        self.assert_entries_as_alone(q, k, v, d_o, entries=(0, 1))
        wide = far.view(-1)[:9728 * 220_000].view(220_000, 9728)[::1100, :16 * 96].view(1, 200, 16, 96)
        tensors = [random(1, 200, 16, 96) for _ in range(3)]
        for a, b in zip(gradients(*tensors, wide), gradients(*tensors, wide.contiguous())):
            self.assertTrue(torch.equal(a, b))

    def test_memcheck(self):
        if not shutil.which("compute-sanitizer"):
            self.skipTest("compute-sanitizer missing")
        name = f"{type(self).__module__}.LargeOffsets.test_same_strides_and_few_entries"
        command = ["compute-sanitizer", "--tool", "memcheck", "--error-exitcode", "99", sys.executable, "-m", "unittest", name]
        checked = subprocess.run(command, capture_output=True, text=True, timeout=500)
        self.assertEqual(checked.returncode, 0, (checked.stdout + checked.stderr)[-3000:])
        self.assertIn("OK", checked.stderr)


if __name__ == "__main__":
    unittest.main()
