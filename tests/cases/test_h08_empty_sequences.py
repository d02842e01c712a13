"""H08: packed sequences of length zero and one, as tables of ids and positions."""
import unittest

import numpy as np

from cases.case import CaseTest
from product import tool

DOCUMENTS = "qd[q] == kd[k]"
CAUSAL = DOCUMENTS + " && kp[k] <= qp[q]"


def ids(lengths):
    return np.repeat(np.arange(len(lengths)), lengths).astype("i4")


def positions(lengths, offsets):
    return np.concatenate([np.arange(n) + o for n, o in zip(lengths, offsets)] or [[]]).astype("i4")


def tables(queries, keys):
    """Causal is bottom-right aligned within each sequence."""
    return {"qd": ids(queries), "kd": ids(keys), "qp": positions(queries, [n - m for m, n in zip(queries, keys)]),
            "kp": positions(keys, [0] * len(keys))}


def same_document(p):
    return p.table("qd", "q") == p.table("kd", "k")


def causal(p):
    return same_document(p) & (p.table("kp", "k") <= p.table("qp", "q"))


class EmptySequences(CaseTest):
    def without_positions(self, all_tables):
        return {name: all_tables[name] for name in ("qd", "kd")}

    def test_queries_of_length_one(self):
        queries, keys = [0, 1, 0, 1], [0, 3, 0, 5]
        data = [self.normal(1, n, h, 64) for n, h in ((2, 9), (8, 3), (8, 3), (2, 9))]
        given = tables(queries, keys)
        for dtype in ("bf16", "fp16"):
            _, results, inputs = self.run_arrays(data, "--scale", "1", "--mask", CAUSAL, dtype=dtype, tables=given)
            self.check_rule(results, inputs, dtype, scale=1, visible=causal, tables=given)
            _, every, _ = self.run_arrays(data, "--scale", "1", "--mask", DOCUMENTS, dtype=dtype,
                                          tables=self.without_positions(given))
            self.assert_same(results, every, "without causal")

    def test_keys_without_queries(self):
        queries, keys = [0, 1208, 840, 0], [2538, 1742, 840, 3072]
        if tool.TARGET == "cpu":  # the same structure at an eighth of the length
            queries, keys = [0, 151, 105, 0], [317, 218, 105, 384]
        given = tables(queries, keys)
        sq, sk = sum(queries), sum(keys)
        data = [self.normal(1, n, h, 256) for n, h in ((sq, 4), (sk, 1), (sk, 1), (sq, 4))]
        unseen = np.isin(given["kd"], (0, 3))
        for mask, visible, own in ((CAUSAL, causal, given), (DOCUMENTS, same_document, self.without_positions(given))):
            runs = [self.run_arrays(data, "--mask", mask, dtype="bf16", tables=own)[1:] for _ in range(2)]
            self.assert_same(runs[0][0], runs[1][0], "between two runs")
            results, inputs = runs[0]
            self.assertFalse(results["dk"][:, unseen].any())
            self.assertFalse(results["dv"][:, unseen].any())
            self.check_rule(results, inputs, "bf16", visible=visible, tables=given)

    def test_no_queries_and_no_keys(self):
        for sq, sk in ((0, 5), (5, 0), (0, 0)):
            with self.subTest(sq=sq, sk=sk):
                data = [self.normal(1, n, 2, 64) for n in (sq, sk, sk, sq)]
                _, results, _ = self.run_arrays(data, "--causal")
                self.assertFalse(results["o"].any() or results["dq"].any() or results["dk"].any() or results["dv"].any())
                self.assertTrue(np.isneginf(results["lse"]).all())
                self.assertEqual(results["lse"].shape, (1, 2, sq))

    def test_ids_in_any_order(self):
        """Documents need not lie together, nor be numbered from 0."""
        q_ids, k_ids = self.rng.integers(-3, 3, 150).astype("i4"), self.rng.integers(-3, 4, 170).astype("i4")
        given = {"qd": q_ids * 2**29, "kd": k_ids * 2**29}
        data = [self.normal(1, n, 2, 32) for n in (150, 170, 170, 150)]
        _, results, inputs = self.run_arrays(data, "--mask", DOCUMENTS, tables=given)
        self.check_rule(results, inputs, "fp32", visible=same_document, tables=given)


if __name__ == "__main__":
    unittest.main()
