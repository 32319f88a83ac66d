"""PyTorch Geometric: convolutions on one graph, then pooling over batches of small ones; its pure Python part.

windtunnel run --gpus A100 graph_network.py
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.loader import DataLoader
from torch_geometric.nn import GATConv, GCNConv, SAGEConv, TopKPooling, global_mean_pool


class Network(nn.Module):
    """Two convolutions of one kind."""

    def __init__(self, kind: type[nn.Module]) -> None:
        super().__init__()
        self.first, self.second = kind(8, 16), kind(16, 3)

    def forward(self, nodes: Tensor, edges: Tensor) -> Tensor:
        """Scores of three classes for each node."""
        hidden = F.dropout(self.first(nodes, edges).relu(), training=self.training)
        scores: Tensor = self.second(hidden, edges)
        return scores


def classify_nodes(kind: type[nn.Module]) -> float:
    """Train on half of a graph's nodes; the last loss."""
    graph = Data(x=torch.randn(60, 8), edge_index=torch.randint(0, 60, (2, 240)), y=torch.randint(0, 3, (60,))).cuda()
    train = torch.arange(0, 60, 2, device="cuda")
    model = Network(kind).cuda()
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    for _ in range(5):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(graph.x, graph.edge_index)[train], graph.y[train])
        loss.backward()
        optimizer.step()
    return float(loss)


def classify_graphs() -> float:
    """Train on batches of graphs; the last loss."""
    graphs = [
        Data(x=torch.randn(n, 8), edge_index=torch.randint(0, n, (2, 3 * n)), y=torch.tensor([n % 2]))
        for n in range(4, 36)
    ]
    parts = nn.ModuleList([GCNConv(8, 16), TopKPooling(16), nn.Linear(16, 2)]).cuda()
    optimizer = torch.optim.Adam(parts.parameters(), 0.01)
    for batch in DataLoader(graphs, batch_size=8, shuffle=True, pin_memory=True):
        batch = batch.cuda(non_blocking=True)
        hidden = parts[0](batch.x, batch.edge_index).relu()
        hidden, _, _, owners, _, _ = parts[1](hidden, batch.edge_index, None, batch.batch)
        loss = F.cross_entropy(parts[2](global_mean_pool(hidden, owners)), batch.y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return float(loss)


def main() -> None:
    """Three kinds of convolution, then pooling."""
    torch.manual_seed(0)
    for kind in (GCNConv, GATConv, SAGEConv):
        print(f"{kind.__name__}: loss {classify_nodes(kind):.3f}")
    print(f"graphs: loss {classify_graphs():.3f}")


if __name__ == "__main__":
    main()
