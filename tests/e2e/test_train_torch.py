"""The trainer's model in PyTorch: the same weights give the same loss, gradient norm and gradients."""
import unittest

import numpy as np

from product import tool, training

try:
    import torch
except ImportError:
    torch = None

CONFIG = {"width": 32, "layers": 3, "heads": 4, "hidden": 40, "context": 24}
VOCABULARY = 300


def rope(x, base=10000.0):
    """x is (heads, positions, dim); neighbouring columns are pairs."""
    _, positions, dim = x.shape
    angles = torch.outer(torch.arange(positions, dtype=x.dtype), base ** (-torch.arange(0, dim, 2, dtype=x.dtype) / dim))
    turned = torch.view_as_complex(x.reshape(*x.shape[:-1], dim // 2, 2)) * torch.polar(torch.ones_like(angles), angles)
    return torch.view_as_real(turned).reshape(x.shape)


def loss(p, tokens, targets):
    def norm(x, weight):
        return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-5) * weight

    heads, length = CONFIG["heads"], len(tokens)
    hidden_future = torch.ones(length, length, dtype=torch.bool).triu(1)
    x = p["embedding"][tokens]
    for layer in range(CONFIG["layers"]):
        w = {name: p[f"layers.{layer}.{name}"] for name in
             ("attention_norm", "q", "k", "v", "o", "mlp_norm", "gate", "up", "down")}
        y = norm(x, w["attention_norm"])
        q, k, v = ((y @ w[name].T).reshape(length, heads, -1).transpose(0, 1) for name in "qkv")
        scores = rope(q) @ rope(k).transpose(1, 2) / (CONFIG["width"] / heads) ** 0.5
        attended = scores.masked_fill(hidden_future, -float("inf")).softmax(-1) @ v
        x = x + attended.transpose(0, 1).reshape(length, -1) @ w["o"].T
        y = norm(x, w["mlp_norm"])
        x = x + (torch.nn.functional.silu(y @ w["gate"].T) * (y @ w["up"].T)) @ w["down"].T
    return torch.nn.functional.cross_entropy(norm(x, p["norm"]) @ p["head"].T, targets)


@unittest.skipIf(torch is None, "PyTorch missing (Debian: python3-torch)")
class AgainstTorch(unittest.TestCase):
    def test_losses_and_gradients(self):
        workspace = tool.Workspace()
        self.addCleanup(workspace.close)
        # One window, so that every step is on the same known tokens.
        tokens = np.random.default_rng(3).integers(0, VOCABULARY, CONFIG["context"] + 1)
        data = training.write_tokens(workspace.folder / "tokens.bin", tokens)
        folder = workspace.fresh("run")
        options = [part for name, value in CONFIG.items() for part in (f"--{name}", value)]
        # With beta1 = 0 Adam's first moment is the last step's gradient: the checkpoint shows it.
        outcome = training.train(workspace, "--data", data, *options, "--vocabulary", VOCABULARY, "--batch", 1, "--steps", 6,
                                 "--beta1", 0, "--clip", 0, "--learning-rate", 0.01, "--warmup", 0, "--validation-share", 0,
                                 "--checkpoints", folder, "--checkpoint-every", 1, "--keep", 0,
                                 "--metrics", folder / "metrics.jsonl")
        self.assertEqual(outcome.code, 0, str(outcome))
        lines = training.metrics(folder / "metrics.jsonl")
        steps = sorted(folder.glob("step-*"))
        self.assertEqual(len(steps), 6)
        inputs, targets = torch.tensor(tokens[:-1]), torch.tensor(tokens[1:])
        for before, after, line in zip(steps, steps[1:], lines[1:]):
            weights = training.safetensors(before / "model.safetensors")
            p = {name: torch.tensor(values.astype("f8"), requires_grad=True) for name, values in weights.items()}
            expected = loss(p, inputs, targets)
            expected.backward()
            self.assertAlmostEqual(line["loss"] / expected.item(), 1, delta=1e-6)
            norm = sum((value.grad ** 2).sum().item() for value in p.values()) ** 0.5
            self.assertAlmostEqual(line["gradient_norm"] / norm, 1, delta=1e-5)
            moments = training.safetensors(after / "optimizer-0-of-1.safetensors")
            for name, value in p.items():
                own = np.concatenate([v for key, v in sorted(moments.items()) if key.startswith(f"m/{name}[")])
                wanted = value.grad.numpy().reshape(-1)
                self.assertLessEqual(np.abs(own - wanted).max(), 1e-5 * np.abs(wanted).max(), name)


if __name__ == "__main__":
    unittest.main()
