"""MNIST on several ranks with PyTorch; gradients are reduced by hand."""

import torch
import torch.distributed as dist
from checked.plan import learning_rate, shard
from serial_torch import mnist_cnn, take
from task import BATCH, RATE, WARM_UP, digits
from torch.nn.functional import cross_entropy


def start():
    global model, optimizer, mine
    dist.is_initialized() or dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    model = mnist_cnn()
    for parameter in model.parameters():
        dist.broadcast(parameter.data, src=0)
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
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
    optimizer.step()
    accuracy = (logits.argmax(dim=1) == labels).float().mean()
    metrics = torch.stack([loss.detach(), accuracy])
    dist.all_reduce(metrics)
    loss, accuracy = (metrics / dist.get_world_size()).tolist()
    return {"loss": loss, "accuracy": accuracy}


def weights():
    return [parameter.detach().numpy().copy() for parameter in model.parameters()]
