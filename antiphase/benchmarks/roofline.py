"""What differential attention should cost on a GPU, on paper: a prediction, never a measurement.

For one layer, standard attention has 2H heads of width d. The differential forms have H heads with
two maps of width d and V of width 2d: the same projections, the same number of softmax weights, and
Q, K, V and O of the same size. Three quantities are counted per call, from the formulas alone:

- products, in units of T^2 d multiply-adds per head pair over the attended scores;
- memory traffic, in tensors of the size of Q: every input is read once and every output written
  once per kernel, so re-reads of K and V by other blocks come from the second-level cache;
- exponentials, one per score that is computed (the backward pass computes them again).

Each is divided by the published peak of a device. The time of a call is the largest of the three
times ("overlapped") or their sum ("serial"): a real kernel lies between. All forms are assumed to
reach the same fraction of a peak, which then cancels in the ratio to standard attention.
"""

from dataclasses import dataclass

BYTES = 2  # of a bf16 number


@dataclass(frozen=True)
class Gpu:
    """Published dense peaks of a device.

    Attributes:
        name: of the device.
        products: bf16 matrix products, FLOP/s.
        memory: bytes/s.
        exponentials: special functions per second, 16 per multiprocessor (or compute unit) and
            clock at the boost clock.
    """

    name: str
    products: float
    memory: float
    exponentials: float


GPUS = (
    Gpu("A100 SXM 80GB", 312e12, 2.039e12, 108 * 16 * 1.41e9),
    Gpu("H100 SXM", 989.4e12, 3.35e12, 132 * 16 * 1.83e9),
    Gpu("B200", 2250e12, 8.0e12, 148 * 16 * 1.85e9),
    Gpu("MI300X", 1307.4e12, 5.3e12, 304 * 16 * 2.1e9),
)


@dataclass(frozen=True)
class Form:
    """The counts of one way to compute a layer's attention, (forward, backward) per head pair.

    Attributes:
        name: of the form.
        products: matrix products, in T^2 d multiply-adds.
        tensors: tensors of the size of Q that are read and written.
        exponentials: per score of one map.
        saved: tensors that only the forward pass of training writes.
        cache_reads: how often decoding reads the KV cache.
        launches: number of kernels of a forward pass.
    """

    name: str
    products: tuple[int, int]
    tensors: tuple[int, int]
    exponentials: tuple[int, int]
    saved: int
    cache_reads: float
    launches: int


# Products. Q K^T of one map: 1; A V with V of width d: 1, of width 2d: 2. Backward of one map in
# one pass: S, dP, dV, dQ, dK; with dQ in a kernel of its own, S and dP twice.
# Tensors. Forward: Q, K, V, O. Backward: these, dO, dQ, dK, dV; a second kernel reads Q, K, V and
# dO again.
STANDARD = Form("standard", (4, 10), (4, 8), (2, 2), 0, 1.0, 1)
STANDARD_SPLIT = Form("standard, backward in 2 kernels", (4, 14), (4, 12), (2, 4), 0, 1.0, 1)
# Both maps are applied to V of width 2d; dP and dV are shared. Training stores A2 V for the
# gradient of lambda, and the backward pass reads it.
FUSED = Form("fused, backward in 2 kernels", (6, 14), (4, 13), (2, 4), 1, 1.0, 1)
# What our kernels do with V wider than 128: the forward pass goes over V once per map, and the
# second launch reads A2 V to subtract it; the backward pass is the fused one.
TWO_LAUNCHES = Form("fused, forward in 2 launches", (6, 14), (7, 13), (2, 4), 0, 1.0, 2)
# Each call reads V. O1 and O2 are written, and a third kernel reads them to write O. Backward: a
# kernel reads dO and O2 and writes -lambda dO (3); the calls read their Q, K, V, O and dO (8) and
# write their dQ, dK and dV (4); a sum reads two dV and writes one (3).
WIDE = Form("2 calls over wide V", (6, 14), (9, 18), (2, 2), 0, 1.5, 3)
# V in halves, for kernels that need V as wide as K: each map is computed twice, and dQ, dK and dV
# are sums of two.
HALVES = Form("4 calls over halves of V", (8, 20), (11, 28), (4, 4), 0, 2.0, 5)
FORMS = (STANDARD, STANDARD_SPLIT, FUSED, TWO_LAUNCHES, WIDE, HALVES)
WIDEST_FUSED = 128  # of V, in our forward kernel
WORKLOADS = ("prefill", "training", "decode")


@dataclass(frozen=True)
class Shape:
    """The call; by default the paper's 3B model at its training length.

    Attributes:
        pairs: number of differential heads; standard attention has twice as many.
        width: d, of Q and K per head.
        length: number of keys.
        batch: number of sequences.
        causal: a query attends to half of the keys on average.
    """

    pairs: int = 12
    width: int = 128
    length: int = 4096
    batch: int = 1
    causal: bool = True


@dataclass(frozen=True)
class Prediction:
    """The predicted time of one form on one device.

    Attributes:
        limit: what takes longest: products, memory or exponentials.
        overlapped: seconds if all three run at the same time.
        serial: seconds if they run one after the other.
    """

    limit: str
    overlapped: float
    serial: float


def predict(form: Form, gpu: Gpu, shape: Shape, workload: str) -> Prediction:
    """Predict the time of one layer's attention from counts and published peaks.

    Args:
        form: how attention is computed.
        gpu: published peaks.
        shape: of the call.
        workload: "prefill" (forward), "training" (forward and backward) or "decode" (one query).

    Returns:
        The times, and which peak limits them.

    Raises:
        ValueError: an unknown workload.
    """
    if workload not in WORKLOADS:
        raise ValueError(f"workload: got {workload!r}, allowed are {', '.join(WORKLOADS)}")
    sequences, keys, width = shape.batch * shape.pairs, shape.length, shape.width
    queries = 1 if workload == "decode" else keys
    scores = queries * keys * (0.5 if shape.causal and queries > 1 else 1.0)  # of one map
    tensor = sequences * 2 * keys * width * BYTES  # Q of a head pair: two heads of width d
    training = workload == "training"
    products = sum(form.products) if training else form.products[0]
    exponentials = sum(form.exponentials) if training else form.exponentials[0]
    tensors = {
        "prefill": form.tensors[0],
        "training": sum(form.tensors) + form.saved,
        "decode": 2 * form.cache_reads,  # Q and O of one token are nothing beside the cache
    }[workload]
    times = {
        "products": 2 * products * width * scores * sequences / gpu.products,
        "memory": tensors * tensor / gpu.memory,
        "exponentials": exponentials * scores * sequences / gpu.exponentials,
    }
    return Prediction(max(times, key=times.__getitem__), max(times.values()), sum(times.values()))


def table(shape: Shape) -> list[list[str]]:
    """Return the predicted times relative to `STANDARD`: a row per workload, form and device.

    Args:
        shape: of the call.

    Returns:
        Cells as text: workload, form, and per device "overlapped / serial (limit)".
    """
    rows = []
    for workload in WORKLOADS:
        for form in FORMS:
            if workload != "training" and form is STANDARD_SPLIT:
                continue  # differs in the backward pass alone
            if form is TWO_LAUNCHES and (workload == "decode" or 2 * shape.width <= WIDEST_FUSED):
                continue  # one launch
            cells = []
            for gpu in GPUS:
                base = predict(STANDARD, gpu, shape, workload)
                found = predict(form, gpu, shape, workload)
                ratios = (found.overlapped / base.overlapped, found.serial / base.serial)
                cells.append(f"{ratios[0]:.2f} / {ratios[1]:.2f} ({found.limit})")
            rows.append([workload, form.name, *cells])
    return rows
