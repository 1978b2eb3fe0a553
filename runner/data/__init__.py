"""From image files, a download or memory to batches of pixels.

paths → splits (folder, csv, digits, torchvision, synthetic → train, val, test) → loader (order, decode, transforms)
"""
