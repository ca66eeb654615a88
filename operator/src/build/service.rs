//! The Service in front of rank 0 of all rings.

use k8s_openapi::{
    api::core::v1::{Service, ServicePort, ServiceSpec},
    apimachinery::pkg::util::intstr::IntOrString,
};
use kvasir_api::ServiceType;
use kvasir_plan::LayerRange;

use super::{deployment::API, meta};
use crate::{labels, validate::Spec};

pub(super) fn service(spec: &Spec, first: Option<LayerRange>) -> Service {
    let endpoint = &spec.ring.endpoint;
    let service_type = match endpoint.service_type {
        ServiceType::ClusterIP => "ClusterIP",
        ServiceType::NodePort => "NodePort",
        ServiceType::LoadBalancer => "LoadBalancer",
    };
    Service {
        metadata: meta(spec, spec.name.clone(), labels::of_ring(&spec.name, "endpoint")),
        spec: Some(ServiceSpec {
            type_: Some(service_type.to_owned()),
            // only pods of the plan that is served: those of the next one have no ring yet
            selector: Some(labels::of_rank_0(&spec.name, first)),
            publish_not_ready_addresses: Some(false),
            ports: Some(vec![ServicePort {
                name: Some("http".to_owned()),
                port: endpoint.port,
                protocol: Some("TCP".to_owned()),
                target_port: Some(IntOrString::String(API.to_owned())),
                ..ServicePort::default()
            }]),
            ..ServiceSpec::default()
        }),
        ..Service::default()
    }
}
