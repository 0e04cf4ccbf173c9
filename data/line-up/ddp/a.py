"""MNIST on several ranks with PyTorch's DDP; the loss as PyTorch returns it."""

import torch
import torch.distributed as dist
from checked.plan import learning_rate, shard
from serial_torch import mnist_cnn, take
from task import BATCH, RATE, WARM_UP, digits
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel


def start():
    global model, optimizer, mine
    dist.is_initialized() or dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    model = DistributedDataParallel(mnist_cnn())
    optimizer = torch.optim.SGD(model.parameters(), RATE, momentum=0.9)
    mine = shard(len(digits.x_train), dist.get_rank(), dist.get_world_size())


def step(number):
    rate = learning_rate(number, RATE, dist.get_world_size(), WARM_UP)
    optimizer.param_groups[0]["lr"] = rate
    images, labels = take(mine[number * BATCH : (number + 1) * BATCH])
    logits = model(images)
    loss = cross_entropy(logits, labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    accuracy = (logits.argmax(dim=1) == labels).float().mean()
    return {"loss": loss.item(), "accuracy": accuracy.item()}


def weights():
    return [parameter.detach().numpy().copy() for parameter in model.parameters()]
