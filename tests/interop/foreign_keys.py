"""Names and shapes of the other programs' weights, written down from their code."""

Shapes = dict[str, tuple[int, ...]]


def conv(name: str, inputs: int, outputs: int, kernel: int, bias: bool = True) -> Shapes:
    shapes: Shapes = {f"{name}.weight": (outputs, inputs, kernel, kernel)}
    return {**shapes, f"{name}.bias": (outputs,)} if bias else shapes


def norm(name: str, width: int) -> Shapes:
    return {f"{name}.weight": (width,), f"{name}.bias": (width,)}


def residual(name: str, inputs: int, outputs: int) -> Shapes:
    shapes = {
        **norm(f"{name}.norm1", inputs),
        **conv(f"{name}.conv1", inputs, outputs, 3),
        **norm(f"{name}.norm2", outputs),
        **conv(f"{name}.conv2", outputs, outputs, 3),
    }
    if inputs != outputs:
        shapes |= conv(f"{name}.nin_shortcut", inputs, outputs, 1)
    return shapes


def attention(name: str, width: int) -> Shapes:
    shapes = norm(f"{name}.norm", width)
    for layer in ("q", "k", "v", "proj_out"):
        shapes |= conv(f"{name}.{layer}", width, width, 1)
    return shapes


def batch_norm(name: str, width: int) -> Shapes:
    statistics: Shapes = {f"{name}.running_mean": (width,), f"{name}.running_var": (width,)}
    return {**norm(name, width), **statistics, f"{name}.num_batches_tracked": ()}


def patch_discriminator(num_layers: int, base: int = 64, prefix: str = "") -> Shapes:
    shapes = conv(f"{prefix}main.0", 3, base, 4)
    index, width = 2, base
    for layer in range(1, num_layers + 1):
        outputs = base * min(2**layer, 8)
        shapes |= conv(f"{prefix}main.{index}", width, outputs, 4, bias=False)
        shapes |= batch_norm(f"{prefix}main.{index + 1}", outputs)
        index, width = index + 3, outputs
    return shapes | conv(f"{prefix}main.{index}", width, 1, 4)


def autoencoder(
    multipliers: list[int],
    attention_levels: list[int],
    names: tuple[str, str, str],
    mid: tuple[str, str, str],
    code_width: int,
) -> Shapes:
    """Width 128, two residual blocks per level, 256 latent channels.

    `names` are the names of the encoder's levels, of the decoder's levels, and of a level's
    residual blocks. A decoder with the name `up` counts its levels from the largest resolution.
    """
    down, up, block = names
    widths = [128 * multiplier for multiplier in multipliers]
    last = len(widths) - 1
    shapes = conv("encoder.conv_in", 3, 128, 3)
    width = 128
    for level, outputs in enumerate(widths):
        for index in range(2):
            shapes |= residual(f"encoder.{down}.{level}.{block}.{index}", width, outputs)
            width = outputs
            if level in attention_levels:
                shapes |= attention(f"encoder.{down}.{level}.attn.{index}", width)
        if level < last:
            shapes |= conv(f"encoder.{down}.{level}.downsample.conv", width, width, 3)
    for part in ("encoder", "decoder"):
        first, second, third = (f"{part}.mid.{name}" for name in mid)
        shapes |= residual(first, width, width) | residual(third, width, width)
        shapes |= attention(second, width)
    shapes |= norm("encoder.norm_out", width) | conv("encoder.conv_out", width, 256, 3)
    shapes |= conv("decoder.conv_in", 256, width, 3)
    for level in range(last, -1, -1):
        number = level if up == "up" else last - level
        for index in range(3):
            shapes |= residual(f"decoder.{up}.{number}.{block}.{index}", width, widths[level])
            width = widths[level]
            if level in attention_levels:
                shapes |= attention(f"decoder.{up}.{number}.attn.{index}", width)
        if level > 0:
            shapes |= conv(f"decoder.{up}.{number}.upsample.conv", width, width, 3)
    shapes |= norm("decoder.norm_out", width) | conv("decoder.conv_out", width, 3, 3)
    shapes |= conv("quant_conv", 256, code_width, 1)
    return shapes | conv("post_quant_conv", code_width, 256, 1)


def compvis_vqgan(
    multipliers: list[int], attention_levels: list[int], num_layers: int, quantizer: Shapes
) -> Shapes:
    """With codes of width 256, a weight of LPIPS, and a discriminator."""
    names, mid = ("down", "up", "block"), ("block_1", "attn_1", "block_2")
    shapes = autoencoder(multipliers, attention_levels, names, mid, 256)
    shapes |= conv("loss.perceptual_loss.net.slice1.0", 3, 64, 3)
    return shapes | patch_discriminator(num_layers, prefix="loss.discriminator.") | quantizer


def llamagen_tokenizer(multipliers: list[int]) -> Shapes:
    """With 16384 codes of width 8, and attention on the lowest level."""
    names = ("conv_blocks", "conv_blocks", "res")
    shapes = autoencoder(multipliers, [len(multipliers) - 1], names, ("0", "1", "2"), 8)
    codes: Shapes = {"quantize.embedding.weight": (16384, 8), "quantize.codebook_used": (65536,)}
    return shapes | codes


def compvis_gpt(
    vocab: int, block: int, num_layers: int, width: int, prefix: str = "transformer."
) -> Shapes:
    """Their minGPT; each layer holds its mask."""
    shapes: Shapes = {
        "pos_emb": (1, block, width),
        "tok_emb.weight": (vocab, width),
        "head.weight": (vocab, width),
        **norm("ln_f", width),
    }
    for layer in range(num_layers):
        name = f"blocks.{layer}"
        shapes |= norm(f"{name}.ln1", width) | norm(f"{name}.ln2", width)
        for linear in ("key", "query", "value", "proj"):
            shapes[f"{name}.attn.{linear}.weight"] = (width, width)
            shapes[f"{name}.attn.{linear}.bias"] = (width,)
        shapes[f"{name}.attn.mask"] = (1, 1, block, block)
        shapes[f"{name}.mlp.0.weight"] = (4 * width, width)
        shapes[f"{name}.mlp.0.bias"] = (4 * width,)
        shapes[f"{name}.mlp.2.weight"] = (width, 4 * width)
        shapes[f"{name}.mlp.2.bias"] = (width,)
    return {f"{prefix}{name}": shape for name, shape in shapes.items()}


def llamagen_gpt(
    num_layers: int, width: int, hidden: int, vocab: int = 16384, classes: int = 1000
) -> Shapes:
    shapes: Shapes = {
        "cls_embedding.embedding_table.weight": (classes + 1, width),
        "tok_embeddings.weight": (vocab, width),
        "norm.weight": (width,),
        "output.weight": (vocab, width),
    }
    for layer in range(num_layers):
        name = f"layers.{layer}"
        shapes[f"{name}.attention.wqkv.weight"] = (3 * width, width)
        shapes[f"{name}.attention.wo.weight"] = (width, width)
        shapes[f"{name}.feed_forward.w1.weight"] = (hidden, width)
        shapes[f"{name}.feed_forward.w3.weight"] = (hidden, width)
        shapes[f"{name}.feed_forward.w2.weight"] = (width, hidden)
        shapes[f"{name}.attention_norm.weight"] = (width,)
        shapes[f"{name}.ffn_norm.weight"] = (width,)
    return shapes
