# Images of the operator, the relay and the stage:
#   docker build --target operator .        (or relay, or stage; buildah build works the same)
#   docker buildx build --platform linux/amd64,linux/arm64 --target stage .
# Without a registry, from programs that are built already and a base of one's own; the folder bin/ of the context holds
# kvasir-operator, kvasir-relay, kvasir-stage and ca-certificates.crt:
#   buildah build --target stage --build-arg BINARIES=prebuilt --build-arg BASE_RUN=localhost/base FOLDER
ARG BASE_BUILD=rust:1.95-slim-bookworm
# glibc, libstdc++ and libgcc are all that the programs need
ARG BASE_RUN=debian:bookworm-slim
# the stage that the programs come from: build or prebuilt
ARG BINARIES=build

FROM ${BASE_BUILD} AS build
# llama.cpp wants cmake and a C++ compiler, its bindings want libclang
RUN apt-get update \
    && apt-get install --yes --no-install-recommends build-essential ca-certificates clang cmake libclang-dev \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /source
COPY . .
RUN cargo build --locked --release --package kvasir-operator --package kvasir-relay --package kvasir-stage
RUN install -D --strip --target-directory /bin-out \
    target/release/kvasir-operator target/release/kvasir-relay target/release/kvasir-stage \
    && cp /etc/ssl/certs/ca-certificates.crt /bin-out

FROM scratch AS prebuilt
COPY bin/ /bin-out/

FROM ${BINARIES} AS binaries

FROM ${BASE_RUN} AS base
COPY --from=binaries /bin-out/ca-certificates.crt /etc/ssl/certs/ca-certificates.crt
USER 65532:65532

FROM base AS operator
LABEL org.opencontainers.image.title="kvasir-operator" \
      org.opencontainers.image.description="Serves language models as rings of pods that each hold one window of layers" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=binaries /bin-out/kvasir-operator /usr/local/bin/kvasir-operator
EXPOSE 8080
ENTRYPOINT ["/usr/local/bin/kvasir-operator"]
CMD ["run"]

FROM base AS relay
LABEL org.opencontainers.image.title="kvasir-relay" \
      org.opencontainers.image.description="Bridges the edges of stages that can't be dialled, and hosts the market" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=binaries /bin-out/kvasir-relay /usr/local/bin/kvasir-relay
EXPOSE 8443
ENTRYPOINT ["/usr/local/bin/kvasir-relay"]

FROM base AS stage
LABEL org.opencontainers.image.title="kvasir-stage" \
      org.opencontainers.image.description="Fetches one window of a model's layers and runs it as a rank of a ring" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=binaries /bin-out/kvasir-stage /usr/local/bin/kvasir-stage
ENTRYPOINT ["/usr/local/bin/kvasir-stage"]
