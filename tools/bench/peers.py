"""Measures the attention kernels that PyTorch brings: cuDNN, FlashAttention-2 and FlexAttention.

One JSON request a line on stdin, one JSON reply a line on stdout; a reply with "ok": false says why in "why".

  {"op": "hello"}                              what this Python can measure
  {"op": "open", "batch": ..., "mask": ...}    a problem; its inputs are drawn, or read from "files"
  {"op": "series", "peer": "cudnn", ...}       times one implementation, figures in milliseconds
  {"op": "output", "peer": "cudnn", "file": F} writes its O as (batch, seq, heads, dim): float16, or bfloat16's
                                               bits as uint16
  {"op": "close"}                              frees the problem's memory
"""
import importlib
import json
import os
import statistics
import sys
import time
import warnings

ATTEMPTS = 4
FIRST_SPIN = 5e-3  # seconds
SPIN_CLOCK = 2e9  # cycles a second, at most: a slower clock only spins longer


class Unsupported(Exception):
    """This implementation does not have what the problem asks for."""


def reason(error):
    text = str(error).strip() or type(error).__name__
    return text.splitlines()[0][:300]


class Problem:
    """Tensors are (batch, heads, seq, dim) views of memory in the order (batch, seq, heads, dim)."""

    def __init__(self, torch, request):
        self.torch = torch
        self.mask = request["mask"]
        self.window = request.get("window", 0)
        self.backward = request["backward"]
        self.dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}[request["dtype"]]
        self.scale = request["scale"]
        batch, heads_q, heads_kv = request["batch"], request["heads_q"], request["heads_kv"]
        seq_q, seq_kv, dim_qk, dim_v = request["seq_q"], request["seq_kv"], request["dim_qk"], request["dim_v"]
        self.grouped = heads_q != heads_kv
        self.square = seq_q == seq_kv
        files = request.get("files", {})
        self.q = self.tensor(files.get("q"), (batch, seq_q, heads_q, dim_qk))
        self.k = self.tensor(files.get("k"), (batch, seq_kv, heads_kv, dim_qk))
        self.v = self.tensor(files.get("v"), (batch, seq_kv, heads_kv, dim_v))
        self.do = self.tensor(None, (batch, seq_q, heads_q, dim_v)) if self.backward else None
        if self.backward:
            for tensor in (self.q, self.k, self.v):
                tensor.requires_grad_()

    def tensor(self, file, shape):
        torch = self.torch
        if not file:
            return torch.randn(shape, device="cuda", dtype=self.dtype).transpose(1, 2)
        import numpy
        values = numpy.load(file)
        if values.dtype == numpy.uint16:
            values = values.view(numpy.int16)
        return torch.from_numpy(values).view(self.dtype).to("cuda").transpose(1, 2)

    def check_causal(self):
        if self.mask == "causal" and not self.square:
            raise Unsupported("PyTorch aligns a causal mask to the top left: lengths must be equal")


def sdpa(problem, backend):
    """PyTorch's scaled_dot_product_attention on one backend: (context, function of one forward)."""
    torch = problem.torch
    from torch.nn.attention import SDPBackend, sdpa_kernel
    problem.check_causal()
    more = {"enable_gqa": True} if problem.grouped else {}

    def forward():
        return torch.nn.functional.scaled_dot_product_attention(
            problem.q, problem.k, problem.v, is_causal=problem.mask == "causal", scale=problem.scale, **more)

    return (lambda: sdpa_kernel(getattr(SDPBackend, backend))), forward


def no_context():
    import contextlib
    return contextlib.nullcontext()


def cudnn_graph(problem):
    """cuDNN through its own Python front end, which has what PyTorch does not pass on: windows. Forward only."""
    if problem.backward:
        raise Unsupported("gradients of this problem are not in PyTorch's cuDNN backend")
    try:
        import cudnn
    except ImportError:
        raise Unsupported("PyTorch's cuDNN backend does not take this problem, and cuDNN's own front end "
                          "(nvidia-cudnn-frontend) is not installed") from None
    torch = problem.torch
    io = cudnn.data_type.BFLOAT16 if problem.dtype == torch.bfloat16 else cudnn.data_type.HALF
    handle = cudnn.create_handle()
    cudnn.set_stream(handle=handle, stream=torch.cuda.current_stream().cuda_stream)
    graph = cudnn.pygraph(io_data_type=io, intermediate_data_type=cudnn.data_type.FLOAT,
                          compute_data_type=cudnn.data_type.FLOAT, handle=handle)
    batch, heads, seq, _ = problem.q.shape
    out = torch.empty(batch, seq, heads, problem.v.shape[3], device="cuda", dtype=problem.dtype).transpose(1, 2)

    def port(name, tensor):
        return graph.tensor(name=name, dim=list(tensor.shape), stride=list(tensor.stride()), data_type=io)

    q, k, v = port("q", problem.q), port("k", problem.k), port("v", problem.v)
    bounds = {}
    if problem.mask != "none":
        aligned = cudnn.diagonal_alignment
        bounds["diagonal_alignment"] = aligned.TOP_LEFT if problem.square else aligned.BOTTOM_RIGHT
        bounds["diagonal_band_right_bound"] = 0
    if problem.mask == "window":
        bounds["diagonal_band_left_bound"] = problem.window  # so many keys, the diagonal's own among them
    o, _ = graph.sdpa(name="sdpa", q=q, k=k, v=v, generate_stats=False, attn_scale=problem.scale, **bounds)
    o.set_output(True).set_dim(list(out.shape)).set_stride(list(out.stride())).set_data_type(io)
    graph.validate()
    graph.build_operation_graph()
    graph.create_execution_plans([cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK])
    graph.check_support()
    graph.build_plans()
    workspace = torch.empty(max(graph.get_workspace_size(), 1), device="cuda", dtype=torch.uint8)
    tensors = {q: problem.q, k: problem.k, v: problem.v, o: out}

    def forward():
        graph.execute(tensors, workspace, handle=handle)
        return out

    return no_context, forward


def cudnn_forward(problem):
    if problem.mask == "window":
        return cudnn_graph(problem)
    context, forward = sdpa(problem, "CUDNN_ATTENTION")
    try:
        with context():
            forward()
    except RuntimeError as error:
        if "CUDA error" in str(error) or problem.backward:
            raise
        return cudnn_graph(problem)
    return context, forward


def fa2_forward(problem):
    if problem.mask != "window":
        return sdpa(problem, "FLASH_ATTENTION")
    if problem.backward:
        raise Unsupported("PyTorch's FlashAttention-2 has windows in its forward only")
    torch = problem.torch
    q, k, v = (t.transpose(1, 2) for t in (problem.q, problem.k, problem.v))

    def forward():
        return torch.ops.aten._flash_attention_forward(
            q, k, v, None, None, q.shape[1], k.shape[1], 0.0, True, False, scale=problem.scale,
            window_size_left=problem.window - 1, window_size_right=0)[0].transpose(1, 2)

    return no_context, forward


def flex_forward(problem):
    torch = problem.torch
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention
    torch._dynamo.reset()  # kernels made for exactly this shape, as for a first problem
    shift = problem.k.shape[2] - problem.q.shape[2]
    window = problem.window

    def causal(b, h, q, k):
        return k <= q + shift

    def banded(b, h, q, k):
        return (k <= q + shift) & (k > q + shift - window)

    mask = {"none": None, "causal": causal, "window": banded}[problem.mask]
    block_mask = None
    if mask:
        block_mask = create_block_mask(mask, None, None, problem.q.shape[2], problem.k.shape[2], device="cuda")
    compiled = torch.compile(flex_attention, dynamic=False)

    def forward():
        return compiled(problem.q, problem.k, problem.v, block_mask=block_mask, scale=problem.scale,
                        enable_gqa=problem.grouped)

    return no_context, forward


FORWARD = {"cudnn": cudnn_forward, "fa2": fa2_forward, "flex": flex_forward}


class Session:
    def __init__(self):
        self.torch = None
        self.problem = None
        self.ready = {}  # peer -> (context, function) of the open problem

    def answer(self, request):
        return {"hello": self.hello, "open": self.open, "series": self.series, "output": self.output,
                "close": self.close}[request["op"]](request)

    def hello(self, request):
        try:
            torch = importlib.import_module("torch")
        except Exception as error:  # a broken installation raises anything
            return {"ok": False, "why": f"PyTorch cannot be imported by {sys.executable}: {reason(error)}"}
        if not torch.cuda.is_available():
            return {"ok": False, "why": f"PyTorch {torch.__version__} sees no GPU"}
        self.torch = torch
        torch.manual_seed(1)
        # A graph's backward is run many times here.
        functorch = importlib.import_module("torch._functorch.config")
        functorch.donated_buffer = False
        version = torch.backends.cudnn.version() or 0
        return {"ok": True, "torch": torch.__version__, "device": torch.cuda.get_device_name(),
                "cudnn": f"{version // 10000}.{version // 100 % 100}.{version % 100}", "peers": list(FORWARD)}

    def open(self, request):
        self.close(request)
        self.problem = Problem(self.torch, request)
        return {"ok": True}

    def close(self, request):
        self.problem = None
        self.ready = {}
        if self.torch:
            import gc
            gc.collect()
            self.torch.cuda.empty_cache()
        return {"ok": True}

    def once(self, peer):
        """The context that a peer runs in and the work of one launch; made at first use, which may compile."""
        if peer not in self.ready:
            problem, torch = self.problem, self.torch
            with warnings.catch_warnings(record=True) as said:
                warnings.simplefilter("always")
                try:
                    context, forward = FORWARD[peer](problem)
                    with context():
                        out = forward()
                        work = forward
                        if problem.backward:
                            def work():
                                return torch.autograd.grad(out, (problem.q, problem.k, problem.v), problem.do,
                                                           retain_graph=True)
                            work()
                    torch.cuda.synchronize()
                except RuntimeError as error:
                    # PyTorch refuses with one general sentence and warns of the causes.
                    causes = [reason(w.message).split(" (Triggered")[0] for w in said]
                    if "No available kernel" in str(error) and causes:
                        causes = [c for c in causes if "not used because" not in c] or causes
                        raise Unsupported(causes[0]) from None
                    raise
            self.ready[peer] = context, work
        return self.ready[peer]

    def series(self, request):
        torch, repeats = self.torch, request["repeats"]
        started = time.monotonic()
        context, work = self.once(request["peer"])
        setup = time.monotonic() - started
        starts, stops = ([torch.cuda.Event(enable_timing=True) for _ in range(repeats)] for _ in range(2))
        time.sleep(request["pause"])
        begin = time.monotonic()
        spin, hidden = FIRST_SPIN, False
        with context():
            for _ in range(request["warmups"]):
                work()
            for _ in range(ATTEMPTS):
                torch.cuda._sleep(int(spin * SPIN_CLOCK))
                before = time.monotonic()
                for start, stop in zip(starts, stops):
                    start.record()
                    work()
                    stop.record()
                queued = time.monotonic() - before
                torch.cuda.synchronize()
                hidden = queued < spin
                if hidden:
                    break
                spin = 2 * queued
        end = time.monotonic()
        times = [start.elapsed_time(stop) for start, stop in zip(starts, stops)]
        return {"ok": True, "ms": statistics.median(times), "fastest": min(times), "slowest": max(times),
                "queued": hidden, "begin": begin, "end": end, "setup_s": setup}

    def output(self, request):
        import numpy
        torch = self.torch
        context, work = self.once(request["peer"])
        with context():
            out = work()
        values = out.detach().transpose(1, 2).contiguous()
        if values.dtype == torch.bfloat16:
            values = values.view(torch.int16).cpu().numpy().view(numpy.uint16)
        else:
            values = values.cpu().numpy()
        numpy.save(request["file"], values)
        return {"ok": True}


def main():
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is no reply
    session = Session()
    for line in sys.stdin:
        try:
            reply = session.answer(json.loads(line))
        except Exception as error:  # whatever a peer does must not end the others
            reply = {"ok": False, "why": reason(error), "broken": "CUDA error" in str(error)}
        replies.write(json.dumps(reply) + "\n")
        replies.flush()


if __name__ == "__main__":
    main()
