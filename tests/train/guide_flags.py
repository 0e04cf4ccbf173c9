"""The flags with which Bede's guide trains ResNet-50, verbatim, so that its command can be pasted."""

import shlex

GUIDE = shlex.split("""
--mode=train_and_evaluate --iter_unit=epoch --num_iter=50 --batch_size=256 --warmup_steps=100 --use_cosine_lr
--label_smoothing 0.1 --lr_init=0.256 --lr_warmup_epochs=8 --momentum=0.875 --weight_decay=3.0517578125e-05
--data_dir=/data/imagenetTF/ --results_dir=run_results --use_xla --precision=fp16 --loss_scale=1024
--use_static_loss_scaling
""")
