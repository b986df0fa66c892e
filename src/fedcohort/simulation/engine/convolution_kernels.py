"""Triton kernels around a convolution's matrix products: what else moves through memory, once.

A convolution of many lanes is a batched matrix product of kernels with patches. Around it these
kernels lay out the patches, finish the product (ReLU, max-pooling, dropout) in one pass, and take
both back. Layouts, with N = images * out height * out width and K = channels * kernel size:

- activations: (groups, channels, images, height, width);
- patches: (groups, K + 1 and padding, N and padding); row K is 1, so that the bias is a column of
  the kernels;
- a code per finished entry: the place in its window that it came from, or none.

The paddings, zeros, make rows multiples of 16 bytes: other products do without tensor cores.
"""

# mypy: ignore-errors
import triton
import triton.language as tl

#: Entries of a row that one program handles, and of how many rows.
BLOCK = 512
ROWS = 8


@triton.jit
def lay_out_patches(
    x,
    patches,
    group_stride,
    image_stride,
    channel_stride,
    WIDTH: tl.constexpr,
    KERNEL_HEIGHT: tl.constexpr,
    KERNEL_WIDTH: tl.constexpr,
    CONV_HEIGHT: tl.constexpr,
    CONV_WIDTH: tl.constexpr,
    K: tl.constexpr,
    K_PADDED: tl.constexpr,
    N: tl.constexpr,
    N_PADDED: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Copy every patch of every image into a column."""
    group = tl.program_id(1).to(tl.int64)
    n = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    row, column = (n // CONV_WIDTH) % CONV_HEIGHT, n % CONV_WIDTH
    image = n // (CONV_HEIGHT * CONV_WIDTH)
    corner = x + group * group_stride + image * image_stride + row * WIDTH + column
    line = patches + group * (K_PADDED * N_PADDED) + n
    for j in tl.static_range(ROWS):
        k = tl.program_id(2) * ROWS + j
        channel = k // (KERNEL_HEIGHT * KERNEL_WIDTH)
        within = (k // KERNEL_WIDTH) % KERNEL_HEIGHT * WIDTH + k % KERNEL_WIDTH
        at = corner + channel * channel_stride + within
        value = tl.load(at, mask=(n < N) & (k < K), other=0.0)
        value = tl.where((n < N) & (k == K), 1.0, value)
        tl.store(line + k * N_PADDED, value, mask=(n < N_PADDED) & (k < K_PADDED))


@triton.jit
def gather_patches(
    slopes,
    of_x,
    CHANNELS: tl.constexpr,
    IMAGES: tl.constexpr,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
    KERNEL_HEIGHT: tl.constexpr,
    KERNEL_WIDTH: tl.constexpr,
    CONV_HEIGHT: tl.constexpr,
    CONV_WIDTH: tl.constexpr,
    K_PADDED: tl.constexpr,
    N_PADDED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Add up, for every input entry, the slopes of all patches that it is in."""
    group = tl.program_id(1).to(tl.int64)
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    size = CHANNELS * IMAGES * HEIGHT * WIDTH
    column, row = i % WIDTH, (i // WIDTH) % HEIGHT
    image, channel = (i // (HEIGHT * WIDTH)) % IMAGES, i // (HEIGHT * WIDTH * IMAGES)
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for a in tl.static_range(KERNEL_HEIGHT):
        for b in tl.static_range(KERNEL_WIDTH):
            y, x = row - a, column - b
            inside = (y >= 0) & (y < CONV_HEIGHT) & (x >= 0) & (x < CONV_WIDTH) & (i < size)
            k = (channel * KERNEL_HEIGHT + a) * KERNEL_WIDTH + b
            at = k * N_PADDED + (image * CONV_HEIGHT + y) * CONV_WIDTH + x
            total += tl.load(slopes + group * (K_PADDED * N_PADDED) + at, mask=inside, other=0.0)
    tl.store(of_x + group * size + i, total, mask=i < size)


@triton.jit
def finish(
    product,
    keys,
    out,
    codes,
    n_keys,
    key_number,
    CONV_CHANNELS: tl.constexpr,
    IMAGES: tl.constexpr,
    GROUPS: tl.constexpr,
    CONV_HEIGHT: tl.constexpr,
    CONV_WIDTH: tl.constexpr,
    OUT_HEIGHT: tl.constexpr,
    OUT_WIDTH: tl.constexpr,
    POOL: tl.constexpr,
    RELU: tl.constexpr,
    DROPS: tl.constexpr,
    THRESHOLD: tl.constexpr,
    SCALE: tl.constexpr,
    N_PADDED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Take the largest entry of every window through ReLU and dropout, and note its place."""
    group = tl.program_id(1).to(tl.int64)
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    size = CONV_CHANNELS * IMAGES * OUT_HEIGHT * OUT_WIDTH
    column, row = i % OUT_WIDTH, (i // OUT_WIDTH) % OUT_HEIGHT
    image = (i // (OUT_HEIGHT * OUT_WIDTH)) % IMAGES
    channel = i // (OUT_HEIGHT * OUT_WIDTH * IMAGES)
    here, none = product + group * (CONV_CHANNELS * N_PADDED), POOL * POOL
    best = tl.full((BLOCK,), float("-inf"), dtype=tl.float32)
    code = tl.full((BLOCK,), none, dtype=tl.int32)
    for a in tl.static_range(POOL):
        for b in tl.static_range(POOL):
            at = (image * CONV_HEIGHT + row * POOL + a) * CONV_WIDTH + column * POOL + b
            at += channel * N_PADDED
            value = tl.load(here + at, mask=i < size, other=0.0)
            better = (value > best) | (value != value)
            best = tl.where(better, value, best)
            code = tl.where(better, a * POOL + b, code)
    if RELU:
        code = tl.where(best <= 0, none, code)
        best = tl.where(best <= 0, 0.0, best)
    if DROPS:
        in_lane = (group % GROUPS).to(tl.int32) * IMAGES + image
        place = ((in_lane * CONV_CHANNELS + channel) * OUT_HEIGHT + row) * OUT_WIDTH + column
        key = tl.load(keys + (group // GROUPS) * n_keys + key_number)
        # As models.keyed_dropout: the same masks on every device.
        word = place * -1640531535
        word = (word ^ ((word >> 16) & 0xFFFF)) * -2048144789
        word = (word ^ ((word >> 13) & 0x7FFFF)) * -1028477387
        word = (word ^ ((word >> 16) & 0xFFFF)) ^ key
        word = word * -2048144789
        word = (word ^ ((word >> 15) & 0x1FFFF)) * -1028477387
        code = tl.where(word >= THRESHOLD, code, none)
        best = tl.where(word >= THRESHOLD, best * SCALE, 0.0)
    tl.store(out + group * size + i, best, mask=i < size)
    tl.store(codes + group * size + i, code.to(tl.uint8), mask=i < size)


@triton.jit
def unfinish(
    slopes,
    codes,
    of_product,
    CONV_CHANNELS: tl.constexpr,
    IMAGES: tl.constexpr,
    CONV_HEIGHT: tl.constexpr,
    CONV_WIDTH: tl.constexpr,
    OUT_HEIGHT: tl.constexpr,
    OUT_WIDTH: tl.constexpr,
    POOL: tl.constexpr,
    SCALE: tl.constexpr,
    N: tl.constexpr,
    N_PADDED: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Scatter every slope to the position of its maximum; all other positions get 0."""
    group = tl.program_id(1).to(tl.int64)
    n = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    column, row = n % CONV_WIDTH, (n // CONV_WIDTH) % CONV_HEIGHT
    image = n // (CONV_HEIGHT * CONV_WIDTH)
    y, x = row // POOL, column // POOL
    inside = (n < N) & (y < OUT_HEIGHT) & (x < OUT_WIDTH)
    place = (row % POOL) * POOL + column % POOL
    per_channel = IMAGES * OUT_HEIGHT * OUT_WIDTH
    at = group * (CONV_CHANNELS * per_channel) + (image * OUT_HEIGHT + y) * OUT_WIDTH + x
    line = of_product + group * (CONV_CHANNELS * N_PADDED) + n
    for j in tl.static_range(ROWS):
        channel = tl.program_id(2) * ROWS + j
        here = inside & (channel < CONV_CHANNELS)
        code = tl.load(codes + at + channel * per_channel, mask=here, other=255).to(tl.int32)
        slope = tl.load(slopes + at + channel * per_channel, mask=here, other=0.0) * SCALE
        value = tl.where((code == place) & here, slope, 0.0)
        tl.store(line + channel * N_PADDED, value, mask=(n < N_PADDED) & (channel < CONV_CHANNELS))
