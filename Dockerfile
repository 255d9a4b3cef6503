# The same commands as on a plain Debian 12. Build: docker build -t ebb .
# Run: docker run --rm -p 8080:8080 -v ebb-models:/models ebb
FROM debian:12

RUN apt-get update && apt-get install -y --no-install-recommends make

WORKDIR /src
COPY . .
RUN deploy/setup.sh run && make all

# The default model is fetched at the first start and stays in the volume.
ENV XDG_CACHE_HOME=/models
VOLUME /models
EXPOSE 8080
STOPSIGNAL SIGTERM
CMD ["make", "run", "ARGS=--host 0.0.0.0"]
