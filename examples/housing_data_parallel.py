"""Train a small network on the Boston housing data with nn.DataParallel, as in section 5.7 of a PyTorch book.

Every batch of 128 rows is split evenly over the visible GPUs; the network prints what each GPU got. Runs on several
GPUs, on one, or on the CPU; writes the loss to TensorBoard event files.

    windtunnel run --gpus 2xV100 examples/housing_data_parallel.py
    tensorboard --logdir logs

The labels have shape (rows,) and the outputs (rows, 1), as in the book: MSELoss then compares every output with every
label, PyTorch warns, and the network learns the mean price only. `--column-labels` gives the labels the outputs' shape.
"""

import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F
from housing import load_boston, train_test_split
from torch.utils.data import DataLoader
from torch.utils.tensorboard import SummaryWriter


class Net1(nn.Module):
    """Three linear layers with ReLU between them."""

    def __init__(self, in_dim, n_hidden_1, n_hidden_2, out_dim):
        super().__init__()
        self.layer1 = nn.Sequential(nn.Linear(in_dim, n_hidden_1))
        self.layer2 = nn.Sequential(nn.Linear(n_hidden_1, n_hidden_2))
        self.layer3 = nn.Sequential(nn.Linear(n_hidden_2, out_dim))

    def forward(self, x):
        """Map rows of features (n, 13) to prices (n, 1)."""
        x1 = F.relu(self.layer1(x))
        x1 = F.relu(self.layer2(x1))
        x2 = self.layer3(x1)
        # One write: the GPUs' threads print at the same time.
        print(f"\tIn Model: input size {x.size()} output size {x2.size()}\n", end="")
        return x2


def parse_arguments():
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--disable-cuda", action="store_true", help="train on the CPU")
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0, help="seed of the weights and of the order of the batches")
    parser.add_argument("--logs", default="logs", help="folder for the TensorBoard event files")
    parser.add_argument("--column-labels", action="store_true", help="give the labels the outputs' shape (n, 1)")
    return parser.parse_args()


def main():
    """Load, split, train, print."""
    args = parse_arguments()
    torch.manual_seed(args.seed)
    boston = load_boston()
    X_train, _, y_train, _ = train_test_split(boston.data, boston.target, test_size=0.2, random_state=0)
    train_loader = DataLoader(list(zip(X_train, y_train, strict=True)), batch_size=128, shuffle=True)

    use_cuda = torch.cuda.is_available() and not args.disable_cuda
    device = torch.device("cuda:0" if use_cuda else "cpu")
    model = Net1(13, 16, 32, 1)
    if use_cuda and torch.cuda.device_count() > 1:
        print("Let's use", torch.cuda.device_count(), "GPUs")
        model = nn.DataParallel(model)
    model.to(device)
    print(model)

    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    loss_func = nn.MSELoss()
    with SummaryWriter(log_dir=args.logs) as writer:
        for epoch in range(args.epochs):
            model.train()
            for data, label in train_loader:
                input = data.float().to(device)
                label = label.float().to(device)
                if args.column_labels:
                    label = label.unsqueeze(1)
                output = model(input)
                loss = loss_func(output, label)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                print("Outside: input size", input.size(), "output_size", output.size())
            writer.add_scalar("train_loss_paral", loss, epoch)


if __name__ == "__main__":
    main()
