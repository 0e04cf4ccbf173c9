"""MNIST on several ranks with PyTorch's DDP, and a data loader."""

import torch
import torch.distributed as dist
from checked.plan import learning_rate
from serial_torch import mnist_cnn, take
from task import BATCH, RATE, WARM_UP
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset


def start():
    global model, optimizer, batches
    dist.is_initialized() or dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    model = DistributedDataParallel(mnist_cnn())
    optimizer = torch.optim.SGD(model.parameters(), RATE, momentum=0.9)
    batches = iter(DataLoader(TensorDataset(*take(slice(None))), batch_size=BATCH))


def step(number):
    rate = learning_rate(number, RATE, dist.get_world_size(), WARM_UP)
    optimizer.param_groups[0]["lr"] = rate
    images, labels = next(batches)
    logits = model(images)
    loss = cross_entropy(logits, labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    accuracy = (logits.argmax(dim=1) == labels).float().mean()
    metrics = torch.stack([loss.detach(), accuracy])
    dist.all_reduce(metrics)
    loss, accuracy = (metrics / dist.get_world_size()).tolist()
    return {"loss": loss, "accuracy": accuracy}


def weights():
    return [parameter.detach().numpy().copy() for parameter in model.parameters()]
