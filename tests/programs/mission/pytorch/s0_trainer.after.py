class Linear(d2l.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(3, 1)

    def loss(self, y_hat, y):
        return nn.functional.mse_loss(y_hat, y)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


trainer = d2l.Trainer(max_epochs=5, num_gpus=8, gradient_clip_val=1)
print(trainer.max_epochs, trainer.num_gpus, trainer.gradient_clip_val, trainer.gpus)
torch.manual_seed(0)
inputs = torch.randn(64, 3)
batches = [(x, x.sum(1, keepdim=True)) for x in inputs.split(16)]
model = Linear()
before = nn.functional.mse_loss(model(inputs), inputs.sum(1, keepdim=True)).item()
trainer.fit(model, batches)
print(model.trainer is trainer, trainer.model is model, model.board.xlim)
print({str(parameter.device) for parameter in model.parameters()})
print([str(a.device) for a in trainer.prepare_batch(batches[0])])
after = nn.functional.mse_loss(model(inputs.cuda()), inputs.cuda().sum(1, keepdim=True)).item()
print(after < before)
print(d2l.Trainer(max_epochs=1).gpus)
