# docker build -t taming . && docker run --gpus all --ipc=host -v "$PWD:/work" taming taming-train-vqgan data.path=my_images
FROM python:3.12
COPY . /opt/taming
RUN pip install --no-cache-dir /opt/taming
WORKDIR /work
CMD ["taming-train-vqgan", "--help"]
