import itertools

import matplotlib.pyplot as plt
import numpy as np
import pytest
import tensorflow as tf
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch, Polygon

from labkit.display import graphs
from labkit.display.graphs import FOLDED, MERGED, PRUNED, SPARED, Edge

v1 = tf.compat.v1


@pytest.fixture(autouse=True)
def _close_figures():
    yield
    plt.close("all")


def node(name, op, *inputs, **lists):
    """Return an operation; each keyword is an attribute with a list of strings."""
    node_def = v1.NodeDef(name=name, op=op, input=inputs)
    for key, texts in lists.items():
        node_def.attr[key].list.s.extend(text.encode() for text in texts)
    return node_def


def boxes(figure):
    """Return the named boxes of a figure, as name and extent."""
    patches = [
        patch for patch in figure.axes[0].patches if isinstance(patch, FancyBboxPatch | Polygon) and patch.get_gid()
    ]
    return [(patch.get_gid(), patch.get_path().get_extents(patch.get_patch_transform())) for patch in patches]


def texts(figure):
    return [text.get_text() for text in figure.axes[0].texts]


def chain(blocks):
    """Return a network's graph: 5 operations per block, and a shortcut around each."""
    defs = [node("image", "Placeholder")]
    last = "image"
    for block in range(blocks):
        scope = f"block_{block}"
        defs += [
            node(f"{scope}/kernel", "Const"),
            node(f"{scope}/conv", "Conv2D", last, f"{scope}/kernel"),
            node(f"{scope}/bias", "Const"),
            node(f"{scope}/add_bias", "BiasAdd", f"{scope}/conv", f"{scope}/bias"),
            node(f"{scope}/sum", "AddV2", f"{scope}/add_bias", last),
        ]
        last = f"{scope}/sum"
    return defs


GRAPHS = {
    "none": [],
    "one": [node("x", "Placeholder")],
    "thirty": chain(6),
    "fused": [node("x", "_Arg"), node("y", "_MklNativeFusedConv2D", "x", fused_ops=["BiasAdd", "Relu"])],
    "square": [node("x", "Placeholder"), node("y", "Mul", "x", "x")],
    "apart": [
        node(f"{kind}_{number}", op) for number in range(3) for kind, op in (("a", "Const"), ("b", "VarHandleOp"))
    ],
}


@pytest.mark.parametrize("defs", GRAPHS.values(), ids=GRAPHS)
def test_every_operation_and_tensor_is_drawn_once_without_overlap_and_every_text_fits(defs):
    figure = graphs.draw(defs, "a title")
    nodes, edges = graphs.read(defs)
    assert sorted(name for name, _ in boxes(figure)) == sorted(node.name for node in defs)
    arrows = [patch.get_gid() for patch in figure.axes[0].patches if isinstance(patch, FancyArrowPatch)]
    assert sorted(arrows) == sorted(f"{edge.source}→{edge.target}" for edge in edges)
    assert len(edges) == sum(len(node.input) for node in defs)
    assert len(nodes) == len(defs)
    assert figure.get_suptitle() == "a title"
    for (_, first), (_, second) in itertools.combinations(boxes(figure), 2):
        assert not first.overlaps(second)
    width, height = 72 * figure.get_size_inches()
    assert all(0 <= box.x0 < box.x1 <= width and 0 <= box.y0 < box.y1 <= height for _, box in boxes(figure))
    figure.canvas.draw()
    axes = figure.axes[0]
    extents = [text.get_window_extent() for text in axes.texts]
    for box in (axes.transData.transform_bbox(box) for _, box in boxes(figure)):
        inside = [text for text in extents if box.contains(*((text.min + text.max) / 2))]
        assert len(inside) >= 2
        assert all(box.x0 <= text.x0 and text.x1 <= box.x1 for text in inside)


def test_plumbing_is_left_out():
    nodes, edges = graphs.read(
        [
            node("init", "NoOp", "^x"),
            node("_arg_x_0_0", "_Arg"),
            node("_arg_split_1_1", "_Arg"),
            node("y", "Split", "_arg_x_0_0", "_arg_split_1_1", "^init"),
            node("z", "Mul", "y:1", "y"),
            node("_retval_z_0_0", "_Retval", "z"),
            node("w", "VarHandleOp"),
            node("w/IsInitialized", "VarIsInitializedOp", "w"),
            node("w/Read", "ReadVariableOp", "w"),
            node("u", "ReadVariableOp", "w"),
            node("v", "Neg", "u"),
        ]
    )
    assert [node.name for node in nodes] == ["x", "split:1", "y", "z", "w", "u", "v"]
    assert edges == [
        Edge("x", "y"),
        Edge("split:1", "y"),
        Edge("y", "z", 1),
        Edge("y", "z", 0),
        Edge("w", "u"),
        Edge("u", "v"),
    ]
    assert [node.kind for node in nodes[:3]] == [graphs.INPUT, graphs.INPUT, graphs.OPERATION]


@pytest.mark.parametrize(
    ("fused", "parts"),
    [
        (node("y", "_FusedConv2D", fused_ops=["BiasAdd", "Relu"]), ("Conv2D", "BiasAdd", "Relu")),
        (node("y", "_MklNativeFusedMatMul", fused_ops=["BiasAdd"]), ("MatMul", "BiasAdd")),
        (node("y", "_UnaryOpsComposition", op_names=["Relu", "Exp"]), ("Relu", "Exp")),
        (node("y", "_MklNativeConv2D"), ()),
    ],
    ids=["Eigen", "oneDNN", "composition", "not merged"],
)
def test_fused_operations_are_named(fused, parts):
    assert graphs.read([fused])[0][0].parts == parts
    assert set(texts(graphs.draw([fused], "merged"))) >= {fused.op, "y", *([" + ".join(parts)] if parts else [])}


def test_a_batch_norm_names_its_activation():
    batch_norm = node("y", "_FusedBatchNormEx")
    batch_norm.attr["activation_mode"].s = b"Relu"
    assert graphs.read([batch_norm])[0][0].parts == ("BatchNorm", "Relu")
    batch_norm.attr["activation_mode"].s = b"Identity"
    assert graphs.read([batch_norm])[0][0].parts == ()


def test_a_graph_is_described_in_words():
    defs = [node("x", "Placeholder"), node("y", "_FusedConv2D", "x", "x", fused_ops=["Relu"])]
    assert graphs.describe(defs) == "x (Placeholder); y (_FusedConv2D: Conv2D + Relu) takes x, x"
    assert graphs.describe([]) == "no operations"


def test_rewrites_are_classified():
    before = [
        node("x", "Placeholder"),
        node("two", "Const"),
        node("root", "Sqrt", "two"),
        node("bias", "Const"),
        node("conv", "Conv2D", "x", "root"),
        node("add", "BiasAdd", "conv", "bias"),
        node("relu", "Relu", "add"),
        node("first", "Exp", "relu"),
        node("second", "Exp", "relu"),
        node("y", "AddV2", "first", "second"),
        node("unused", "Neg", "y"),
    ]
    after = [
        node("_arg_x_0_0", "_Arg"),
        node("root", "Const"),
        node("bias", "Const"),
        node("relu", "_FusedConv2D", "_arg_x_0_0", "root", "bias", fused_ops=["BiasAdd", "Relu"]),
        node("first", "Exp", "relu"),
        node("y", "AddV2", "first", "first"),
    ]
    rewrites = dict.fromkeys(["conv", "add", "relu"], MERGED) | dict.fromkeys(["two", "root"], FOLDED)
    assert graphs.classify_rewrites(before, after) == rewrites | {"second": SPARED, "unused": PRUNED}
    assert graphs.classify_rewrites(before, before) == {}


def test_a_duplicate_removed_before_a_fusion_is_not_part_of_it():
    inputs = [node("x", "Placeholder"), node("w", "Const"), node("v", "Const"), node("first", "Exp", "x")]
    product = node("product", "MatMul", "first", "w")
    pattern = [node("second", "Exp", "x"), node("other", "MatMul", "second", "v"), node("y", "Relu", "other")]
    fused = node("y", "_FusedMatMul", "first", "v", fused_ops=["Relu"])
    rewrites = graphs.classify_rewrites([*inputs, product, *pattern], [*inputs, product, fused])
    assert rewrites == {"second": SPARED, "other": MERGED, "y": MERGED}


def test_tensorflows_own_rewrites_are_recognised():
    """The installed TensorFlow's names for fused operations are known, with and without oneDNN."""
    rng = np.random.default_rng(0)
    with tf.Graph().as_default() as graph:
        x = v1.placeholder(tf.float32, [1, 8, 8, 3], name="x")
        kernel = tf.constant(rng.normal(size=(3, 3, 3, 4)), tf.float32, name="kernel")
        bias = tf.constant(rng.normal(size=4), tf.float32, name="bias")
        y = tf.nn.relu(tf.nn.bias_add(tf.nn.conv2d(x, kernel, 1, "SAME", name="conv"), bias, name="add"), name="y")
    config, metadata = v1.ConfigProto(), v1.RunMetadata()
    config.graph_options.rewrite_options.min_graph_nodes = -1
    with v1.Session(graph=graph, config=config) as session:
        session.run(y, {x: np.ones((1, 8, 8, 3))}, v1.RunOptions(output_partition_graphs=True), metadata)
    after = metadata.partition_graphs[0]
    assert graphs.classify_rewrites(graph.as_graph_def(), after) == dict.fromkeys(["conv", "add", "y"], MERGED)
    figure = graphs.compare(graph.as_graph_def(), after, "before and after")
    assert {"as written", "as it runs", "Conv2D + BiasAdd + Relu", MERGED} <= set(texts(figure))
