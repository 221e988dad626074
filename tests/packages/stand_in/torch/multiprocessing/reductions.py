def reduce_tensor(tensor):
    raise RuntimeError(f'PyTorch has to pickle {tensor}')
