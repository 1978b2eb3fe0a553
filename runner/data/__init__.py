"""From image files, a download or memory to batches of pixels; light to import, without torch.

paths → splits (folder, digits, torchvision, synthetic → train, val, test) → loader (order, decode, transforms)
"""
